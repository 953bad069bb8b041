"""The README's Python runs as it stands."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_api_example_runs(capsys):
    names: dict[str, Any] = {}
    exec(compile(blocks()[0], "README", "exec"), names)
    assert names["result"].state["personal"].shape == (4, 8, 2 * 5 + 2)
    assert "personal" in capsys.readouterr().out
