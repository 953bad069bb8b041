"""What jobs tell: a log file with plain lines, one sentence for a user's mistake, a bar on a terminal."""

import io
import logging

import pytest
from rich.console import Console

from cgpfl.errors import UserError
from cgpfl.joblog import TrainingProgress, job_log


def test_progress_is_plain_lines_in_the_log(tmp_path):
    path = tmp_path / "logs" / "train.log"
    console = Console(file=io.StringIO(), force_terminal=False)
    with job_log(path), TrainingProgress("train digits/mlr/cgpfl", console) as progress:
        for done in range(1, 201):
            progress(done, 200, 0.5)
    first, last = path.read_text().splitlines()
    assert "train digits/mlr/cgpfl: 1 of 200 rounds of all batches, accuracy 50.00%, " in first
    assert "200 of 200 rounds of all batches, accuracy 50.00%, 0 s left" in last
    assert console.file.getvalue() == ""


def test_progress_is_a_bar_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with TrainingProgress("train digits/mlr/cgpfl", console) as progress:
        progress(50, 200, 0.913)
        progress.bar.refresh()
    shown = console.file.getvalue()
    assert "train digits/mlr/cgpfl" in shown
    assert "50/200" in shown
    assert "91.30%" in shown


def test_a_mistake_ends_in_its_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended, job_log(tmp_path / "log"):
        raise UserError("lr is -1; valid is a number above 0.")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "lr is -1; valid is a number above 0.\n"
    assert "ERROR lr is -1; valid is a number above 0." in (tmp_path / "log").read_text()


def test_any_other_error_goes_on_with_its_traceback_in_the_log(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError), job_log(tmp_path / "log"):
        1 / 0  # noqa: B018
    assert "Traceback" in (tmp_path / "log").read_text()
    assert capsys.readouterr().err == ""


def test_warnings_are_on_the_error_stream_too_and_the_log_is_new(tmp_path, capsys):
    for text in ("first", "second"):
        with job_log(tmp_path / "log"):
            logging.getLogger("cgpfl.data").warning(text)
            logging.getLogger("cgpfl.data").info("detail")
    assert capsys.readouterr().err == "first\nsecond\n"
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["WARNING second", "INFO detail"]
