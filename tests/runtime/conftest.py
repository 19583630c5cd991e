"""Makes `tests.support` importable; appended, so that an installed package still comes first."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
