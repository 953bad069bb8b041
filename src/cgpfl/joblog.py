"""What a job of the workflow tells: plain lines in its log file, and on a terminal warnings, errors and a bar."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cgpfl.errors import UserError

log = logging.getLogger(__name__)

LINES_APART = 10.0
"""Seconds between lines on progress in a log."""


@contextmanager
def job_log(path: Path | str) -> Iterator[None]:
    """Writes the package's messages to a new log file while the block runs, warnings to the error stream too.

    A UserError ends the process with its sentence alone; any other error goes on, with its traceback in the log.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(path, mode="w", encoding="utf-8"), logging.StreamHandler()]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handlers[1].setFormatter(logging.Formatter("%(message)s"))
    handlers[1].setLevel(logging.WARNING)
    package = logging.getLogger("cgpfl")
    package.setLevel(logging.INFO)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    for handler in handlers:
        package.addHandler(handler)
    try:
        yield
    except UserError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception as error:
        package.removeHandler(handlers[1])  # Python itself prints the traceback there
        log.exception("%s", error)
        raise
    finally:
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()


class TrainingProgress:
    """Rounds, accuracy and time left of a training job: a bar where the console is a terminal, lines in the log.

    To be called as the engine does, with rounds done, rounds in all (of all batches of runs together) and accuracy in
    0..1.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        console = console or Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=None, accuracy="")
        self.began = time.monotonic()
        self.told = -LINES_APART

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int, accuracy: float) -> None:
        self.bar.update(self.task, completed=done, total=total, accuracy=f"{accuracy:.2%}")
        passed = time.monotonic() - self.began
        if done == total or passed - self.told >= LINES_APART:
            self.told = passed
            left = passed / done * (total - done)
            log.info(
                "%s: %d of %d rounds of all batches, accuracy %.2f%%, %.0f s left",
                self.title,
                done,
                total,
                100 * accuracy,
                left,
            )
