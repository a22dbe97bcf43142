"""A hub and a trainer as forked processes, for measurements with workers of their own kind."""

import logging
import pathlib
import socket
import time

from hetero_rl.config.tree import Config
from hetero_rl.hub.main import serve
from tests.chaos.children import fork
from tests.chaos.trainer_process import main as run_trainer

__all__ = ["Roles", "free_port", "serve_hub"]

_START_SECONDS = 120.0


class Roles:
    """Hub and trainer of one run.

    Args:
        directory: The run directory.
        settings: Of the trainer.
        terms: Settings of the configuration's section `hub`; the defaults count.
    """

    def __init__(self, directory, settings, **terms):
        self.directory = directory
        self.settings = settings
        self.terms = terms
        self.address = f"127.0.0.1:{free_port()}"
        self.children = {}
        make_model(directory)

    def start(self):
        """Starts both; returns when the hub listens."""
        log = self.directory / "hub.log"
        self.children["hub"] = fork(serve_hub, self.address, self.directory, self.terms, log=log)
        await_listening(self.address, self.children["hub"], log)
        self.children["trainer"] = fork(
            run_trainer,
            self.address,
            self.directory,
            self.settings.json(),
            log=self.directory / "trainer.log",
        )

    def end(self):
        """Ends both."""
        for child in self.children.values():
            child.kill()


def make_model(directory):
    """The files of a model without weights."""
    pathlib.Path(directory / "model").mkdir(exist_ok=True, parents=True)
    (directory / "model" / "config.json").write_text('{"vocab_size": 16}')
    (directory / "model" / "vocab.txt").write_text("a")


def serve_hub(address, directory, terms, security=None):
    """The hub, until it is killed."""
    logging.basicConfig(level=logging.WARNING)
    sections = {"hub": {"listen": address, **terms}, "security": security or {}}
    serve(Config.model_validate(sections), directory)


def await_listening(address, child, log):
    """Returns when something listens, or when the child has ended at a failpoint."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _START_SECONDS
    while child.poll() is None:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise AssertionError(f"the hub does not listen: {log.read_text()}") from None
            time.sleep(0.01)
        else:
            return


def free_port():
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
