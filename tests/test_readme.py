"""The README's Python runs as it stands, and its numbers are those of result files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_api_example_runs(capsys):
    names: dict[str, Any] = {}
    exec(compile(blocks()[0], "README", "exec"), names)
    assert names["result"].state["personal"].shape == (4, 8, 2 * 5 + 2)
    assert "personal" in capsys.readouterr().out


def test_the_table_of_speed_is_what_was_measured():
    """And so are the pages beside the files."""
    code = """
import json, sys
from pathlib import Path
import report
for file in Path("results").glob("*-cores.json"):
    found = json.loads(file.read_text(encoding="utf-8"))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == report.markdown(found), file
print(report.summary(json.loads(Path("results/amd-epyc-2-cores.json").read_text(encoding="utf-8"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in README.read_text(encoding="utf-8")
