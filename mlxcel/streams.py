"""An answer that is being generated, read piece by piece. No MLX here."""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Iterator

from mlxcel.errors import EngineError
from mlxcel.types import Chunk, Completion

__all__ = ["Pieces", "Stream"]

Pieces = queue.SimpleQueue[Chunk | BaseException]
"""What the engine's side says about a request, in order."""


class Stream(Iterator[Chunk]):
    """Chunks of one request; the last one carries the completion. One reader at a time.

    Closing it, or dropping it, cancels the request unless it has ended.

    Parameters
    ----------
    pieces : SimpleQueue
        Chunks, or the error that ends them.
    cancel : callable
        Ends the request early; never waits, and may be called twice.
    """

    def __init__(self, pieces: Pieces, cancel: Callable[[], None]) -> None:
        self._pieces = pieces
        self._ended = False
        # Without a reference to the stream itself, so that dropping it is noticed.
        self._cancel = weakref.finalize(self, cancel)
        self._cancel.atexit = False

    def __next__(self) -> Chunk:
        if self._ended:
            raise StopIteration
        chunk = self.poll(None)
        assert chunk is not None
        return chunk

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def poll(self, seconds: float | None) -> Chunk | None:
        """The next chunk, or ``None`` if none came in time.

        Parameters
        ----------
        seconds : float or None
            How long to wait; ``None``: as long as it takes.

        Raises
        ------
        MlxcelError
            The request ended with it, or the stream had ended before.
        """
        if self._ended:
            raise EngineError("the stream has ended: ask again for another answer")
        try:
            item = self._pieces.get(timeout=seconds)
        except queue.Empty:
            return None
        except BaseException:  # an interrupt: nobody will read on
            self.close()
            raise
        if isinstance(item, BaseException):
            self._finish()
            raise item
        if item.completion is not None:
            self._finish()
        return item

    def close(self) -> None:
        """Cancel the request unless it has ended. Idempotent."""
        self._ended = True
        self._cancel()

    def completion(self) -> Completion:
        """Wait for the end and return what became of the request.

        Raises
        ------
        MlxcelError
            It failed.
        """
        for chunk in self:
            if chunk.completion is not None:
                return chunk.completion
        raise EngineError("the engine ended a request without a completion")

    def _finish(self) -> None:
        self._ended = True
        self._cancel.detach()
