"""What ``mlxcel gate status`` reads on this host: settled verdicts, and what exactness says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.config import Settings
from mlxcel.decide.exactness import VetoState, veto_of
from mlxcel.decide.records import ROUND_LOOP_VERSION
from mlxcel.decide.stored import Stored, read_stored
from mlxcel.decide.stored_probes import Probed, Subject, read_probed
from mlxcel.engine.exactness_store import PROBE_VERSION, TARGET_NAME
from mlxcel.engine.exactness_store import store_of as exactness_store
from mlxcel.engine.verdict_store import VerdictStore
from mlxcel.errors import LoadError
from mlxcel.hardware.host import Host, Sources, describe
from mlxcel.hardware.profile_store import digest, host_facts

__all__ = ["Damaged", "Status", "Veto", "read_status"]

_LARGEST = 1 << 20  # bytes; none of these files has more than a few thousand
_LONGEST = 200  # characters of a reason, which may quote what a file holds


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that cannot be used, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Veto:
    """A target that may not burst at a width on this host, and that has settled nothing."""

    target: str
    width: int
    weights: str
    exactness: VetoState


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is settled on a host.

    Attributes
    ----------
    folder : Path
        Folder of the verdicts.
    host : str
        Name of this host; empty where there was nothing to compare.
    adaptive : bool
        Whether the policy is on; if not, nothing of this is used.
    override : bool or None
        What ``MLXCEL_ENABLE_MTP_B1`` says; it outranks everything but a veto.
    pairings : tuple of Stored
        Verdicts, in the order of names and widths.
    vetoes : tuple of Veto
        What exactness forbids without a verdict.
    damaged : tuple of Damaged
        Files that cannot be used.
    """

    folder: Path
    host: str
    adaptive: bool
    override: bool | None
    pairings: tuple[Stored, ...]
    vetoes: tuple[Veto, ...]
    damaged: tuple[Damaged, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "folder": str(self.folder)}


def read_status(settings: Settings, *, now: float, host: Host | None = None) -> Status:
    """Read everything that is settled; no file can make it fail.

    Parameters
    ----------
    settings : Settings
        Cache folder, required level of exactness, override and policy.
    now : float
        Seconds since 1970.
    host : Host, optional
        This host; described by default where there is anything to compare, which imports MLX.
    """
    damaged: list[Damaged] = []
    verdicts = _Files(VerdictStore(settings.cache_dir).folder, damaged)
    probes = _Files(exactness_store(settings.cache_dir).folder, damaged)
    if host is None and (verdicts.texts or probes.texts):
        host = _this_host()
    here = digest(host_facts(host)) if host else None
    probed = _probed(probes, settings)
    pairings = tuple(_judged(item, probed, settings) for item in _stored(verdicts, now, here))
    return Status(
        folder=verdicts.folder,
        host=f"{host.chip} ({host.backend})" if host else "",
        adaptive=settings.mtp_adaptive,
        override=settings.enable_mtp_b1,
        pairings=pairings,
        vetoes=_vetoes(probed, pairings, here, settings),
        damaged=tuple(damaged),
    )


def _this_host() -> Host | None:
    try:
        return describe()
    except LoadError:  # no MLX: whose verdicts these are cannot be told
        return None


class _Files:
    """The texts of a folder's records; whatever is wrong with a file is noted."""

    def __init__(self, folder: Path, damaged: list[Damaged]) -> None:
        self.folder = folder
        self._damaged = damaged
        self.texts = {path.name: text for path in self._paths() if (text := self._text(path))}

    def note(self, name: str, reason: str) -> None:
        """Note what is wrong with a file, in one line."""
        file = _printable(f"{self.folder.name}/{name}".rstrip("/"))
        self._damaged.append(Damaged(file, _printable(" ".join(reason.split())[:_LONGEST])))

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        except OSError as error:
            self.note("", f"not readable ({error.strerror})")
            return []

    def _text(self, path: Path) -> str | None:
        try:
            if not path.is_file():  # a pipe would wait for ever
                self.note(path.name, "not a file: delete it")
            elif path.stat().st_size > _LARGEST:
                self.note(path.name, "no such record is so large: delete it")
            else:
                text = path.read_bytes().decode("utf-8")
                if text.strip():
                    return text
                self.note(path.name, "the file is empty: delete it")
        except UnicodeDecodeError:
            self.note(path.name, "not text: delete it")
        except OSError as error:
            self.note(path.name, f"not readable ({error.strerror})")
        return None


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _stored(files: _Files, now: float, here: str | None) -> list[Stored]:
    versions = {name: Sources().version(name) or "none" for name in ("mlx", "mlxcel")}
    found = []
    for name, text in files.texts.items():
        item = read_stored(name, text, now=now, versions=versions, host=here)
        if item.state == "corrupt":
            files.note(name, item.reason)
        else:
            found.append(item)
    return sorted(found, key=_order)


def _order(item: Stored) -> tuple[bool, str, str, int]:
    names = item.names
    width = item.key.width if item.key else 0
    return not item.in_force, names.target or item.name, names.drafter or "", width


def _probed(files: _Files, settings: Settings) -> dict[Subject, Probed]:
    """Results that an engine with these settings would go by."""
    sizes = (settings.max_width, settings.length_step, settings.prefill_chunk)
    found = {}
    for name, text in files.texts.items():
        try:
            item = read_probed(text, version=PROBE_VERSION, digest=digest, name_field=TARGET_NAME)
        except LoadError as error:
            files.note(name, error.message)
            continue
        if item and item.sizes == sizes and item.subject.round_loop == ROUND_LOOP_VERSION:
            found[item.subject] = item
    return found


def _judged(item: Stored, probed: dict[Subject, Probed], settings: Settings) -> Stored:
    found = probed.get(Subject.of(item.key)) if item.key else None
    return item.judged(veto_of(found.record, settings.mtp_exactness)) if found else item


def _vetoes(
    probed: dict[Subject, Probed],
    pairings: tuple[Stored, ...],
    here: str | None,
    settings: Settings,
) -> tuple[Veto, ...]:
    settled = {Subject.of(item.key) for item in pairings if item.key and item.state == "vetoed"}
    found = []
    for subject, item in probed.items():
        veto = veto_of(item.record, settings.mtp_exactness)
        if veto.vetoed and subject not in settled and here in (None, subject.host):
            name = item.target or subject.target[:12]
            found.append(Veto(name, subject.width, subject.weights, veto))
    return tuple(sorted(found, key=lambda veto: (veto.target, veto.width)))
