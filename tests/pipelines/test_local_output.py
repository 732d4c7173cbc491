"""kfp.local's noise becomes lines that a person reads."""

from __future__ import annotations

import io

from pipelines.local_output import StepOutput

START = "12:00:00.000 - INFO - Executing task '\x1b[96m{step}\x1b[0m'\n12:00:00.001 - INFO - Streamed logs:\n\n"
END = "\n\n12:00:05.000 - {level} - Task '\x1b[96m{step}\x1b[0m' finished with status \x1b[92m{status}\x1b[0m\n"
INPUT = """    [KFP Executor 2026-01-01 00:00:00,000 INFO]: Got executor_input:
    {
        "inputs": {
        }
    }
"""


def lines_of(*texts: str) -> tuple[list[str], StepOutput]:
    screen = io.StringIO()
    output = StepOutput(screen, io.StringIO())
    for text in texts:
        output.write(text)
    return screen.getvalue().splitlines(), output


def one_step(step: str, child: str, status: str = "SUCCESS") -> str:
    level = "INFO" if status == "SUCCESS" else "ERROR"
    return START.format(step=step) + INPUT + child + END.format(step=step, status=status, level=level)


def test_a_steps_own_lines_come_through_between_its_start_and_its_end() -> None:
    lines, output = lines_of(one_step("semantic-ids", "    semantic_ids: started, writing to /x\n    epoch 1: loss 0.5\n"))
    assert lines[:2] == ["▸ semantic_ids", "  epoch 1: loss 0.5"]
    assert lines[2].startswith("✓ semantic_ids finished (")
    assert len(lines) == 3
    assert list(output.times) == ["semantic_ids"]


def test_a_step_that_found_its_result_says_so_in_one_line() -> None:
    lines, output = lines_of(one_step("train", "    train: found its finished result /x\n"))
    assert len(lines) == 1
    assert lines[0].startswith("✓ train found (")
    assert output.reused == {"train"}


def test_a_failed_step_is_remembered_and_its_traceback_is_left_to_the_log() -> None:
    child = '    Traceback (most recent call last):\n      File "x.py", line 1\n    clrflow.errors.DataError: no column\n'
    lines, output = lines_of(one_step("gate", child, status="FAILURE"))
    assert len(lines) == 1
    assert lines[0].startswith("✗ gate failed after ")
    assert output.failed == "gate"
    assert "no column" in output.log.getvalue()  # type: ignore[attr-defined]


def test_a_child_that_a_signal_ended_is_told_from_one_that_failed() -> None:
    _, killed = lines_of(one_step("train", "    Killed\n", status="FAILURE"))
    _, failed = lines_of(one_step("train", "    boom\n", status="FAILURE"))
    assert (killed.killed, failed.killed) == (True, False)


def test_text_that_arrives_in_pieces_is_the_same_text() -> None:
    text = one_step("train", "    train: started, writing to /x\n    loss 1\n")
    whole, _ = lines_of(text)
    pieces, _ = lines_of(*text)
    assert [line.split(" (")[0] for line in pieces] == [line.split(" (")[0] for line in whole]


def test_everything_is_in_the_log_without_colours() -> None:
    text = one_step("train", "    loss 1\n")
    _, output = lines_of(text)
    log = output.log.getvalue()  # type: ignore[attr-defined]
    assert "Executing task 'train'" in log
    assert "Got executor_input" in log
    assert "\x1b" not in log
