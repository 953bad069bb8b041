"""Files that are either whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, and rename it to `path` when the block ends well.

    A reader never sees half a file: if the block raises, the temporary file is removed and `path` is as it
    was. The folder is created if needed. If the block writes nothing, nothing is renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile.mkstemp: its files can be read by their owner only, also after the renaming.
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        yield part
        if part.exists():
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
