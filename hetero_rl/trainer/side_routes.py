"""Uploads other ways to versions that are published already: full copies for late joiners, merged deltas.

    publishing thread ── upload(ways, directory) ──► slot of one ──► thread: put_blob, add_route ──► hub
                             busy: nothing is coded meanwhile        └─ the directory goes

Nobody waits for this thread, and what goes wrong in it stops nothing: workers take a dearer way. `stop` ends an upload at
its next chunk; `close` waits for the thread.
"""

import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hetero_rl.errors import HeteroRLError, RefusedError
from hetero_rl.trainer.patience import InterruptedRunError, Patience
from hetero_rl.weights.blobs import BlobFile
from hetero_rl.weights.full import EncodedVersion
from hetero_rl.wire.ports import TrainingPort

__all__ = ["SideRoutes"]

_LOG = logging.getLogger(__name__)


class SideRoutes:
    """A thread that uploads what nobody waits for.

    Args:
        port: The hub.
        patience: Repeats calls.
    """

    def __init__(self, port: TrainingPort, patience: Patience) -> None:
        self._port = port
        self._patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side-routes")
        self._under_way: Future[None] | None = None
        self._stopped = threading.Event()
        self.refused = False
        """Whether the hub takes no other ways at all: it is an older one."""

    @property
    def busy(self) -> bool:
        """Whether an upload is under way, or none will be any more."""
        if self._under_way is not None and self._under_way.done():
            self._under_way.result()
        return self._stopped.is_set() or (self._under_way is not None and not self._under_way.done())

    def upload(self, ways: Sequence[EncodedVersion], directory: Path) -> None:
        """Hands ways over; their directory is removed when they are stored or given up."""
        self._under_way = self._thread.submit(self._upload, ways, directory)

    def wait(self) -> None:
        """Waits until what was handed over is stored or given up."""
        if self._under_way is not None:
            self._under_way.result()

    def stop(self) -> None:
        """Gives up what is under way."""
        self._stopped.set()

    def close(self) -> None:
        """Waits for the thread and ends it."""
        self._thread.shutdown(wait=True)

    def _upload(self, ways: Sequence[EncodedVersion], directory: Path) -> None:
        try:
            for way in ways:
                self._add(way)
        except InterruptedRunError:
            _LOG.info("the run ends, other ways to its versions are not needed any more")
        except HeteroRLError as error:
            self.refused = isinstance(error, RefusedError) and error.reason == "INCOMPATIBLE"
            _LOG.warning("workers take a dearer way for now: %s", error)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _add(self, way: EncodedVersion) -> None:
        what = f"adding a way to weight version {way.manifest.version}"
        for blob in way.blobs:
            self._patience(lambda blob=blob: self._port.put_blob(blob.reference, self._chunks(blob)), what)  # type: ignore[misc]  # a default binds the loop variable
        self._patience(lambda: self._port.add_route(way.manifest), what)

    def _chunks(self, blob: BlobFile) -> Iterator[bytes]:
        for chunk in blob.chunks():
            if self._stopped.is_set():
                raise InterruptedRunError("the run is to stop")
            yield chunk
