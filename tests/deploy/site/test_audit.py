"""The owner's log: a line per message, in words, and never any data."""

import csv

from deploy.site.common import form, server_for, synthetic, table, with_table
from deploy.sites import agreement, plan_of
from idiolect.deploy.site.state import COLUMNS, AuditLog
from idiolect.host.calls import Call


def test_every_message_in_and_out_has_a_line(tmp_path):
    at = synthetic(tmp_path / "s")
    session, engine = server_for(at)
    engine.advance()
    engine.evaluate(session.people.evaluated, ("test",))
    rows = at.log()
    assert tuple(rows[0]) == COLUMNS
    kinds = ("agree", "enrol", "update", "conclude", "evaluate")
    assert [(r["direction"], r["kind"]) for r in rows] == [
        (direction, kind) for kind in kinds for direction in ("in", "out")
    ]
    assert all(r["verdict"] == "allowed" and int(r["bytes"]) > 0 for r in rows)
    told = {(r["direction"], r["kind"]): r for r in rows}
    assert told["out", "update"]["round"] == "0"
    assert int(told["out", "update"]["numbers"]) == 4 * session.contract.up.values
    assert "accuracy, loss of 4 clients on test" in told["out", "evaluate"]["content"]
    assert "names of 4 clients" in told["out", "agree"]["content"]
    sent = sum(int(r["bytes"]) for r in rows if r["direction"] == "out")
    assert at.site.usage.bytes_out == sent
    assert at.site.usage.numbers == sum(int(r["numbers"]) for r in rows)


def test_a_refusal_says_why(tmp_path):
    at = synthetic(tmp_path / "s")
    at.ask(Call("save"))
    assert at.log()[-1]["verdict"] == "refused: save: internal call, refused from the network"
    at.site.handle(b"no frame at all")
    assert at.log()[-1]["verdict"] == "ValueError"
    assert at.site.usage.refused == 2


def test_names_and_values_of_rows_are_never_in_it(tmp_path):
    frame = table()
    frame.loc[3, "ward"] = "Smith, John"
    frame.loc[5, "age"] = 98765.4321
    at = with_table(tmp_path / "s", frame, client="ward", rules={"min_samples": 1})
    at.ask(agreement(plan_of("fedavg"), form()))
    at.ask(agreement(plan_of("fedavg"), form(classes=["no", "maybe"])))
    text = (at.path / "messages.csv").read_text()
    assert "Smith" not in text and "98765" not in text and "no, " not in text


def test_what_a_server_writes_cannot_be_a_formula_or_another_line(tmp_path):
    at = synthetic(tmp_path / "s")
    at.ask(Call("=1+1\n2026,in,forged"))
    rows = at.log()
    assert len(rows) == 2 and rows[0]["kind"] == "unknown"
    assert not any(cell.startswith("=") for row in rows for cell in row.values() if cell)


def test_a_line_that_a_kill_has_cut_short_is_ended(tmp_path):
    log = AuditLog(tmp_path / "messages.csv")
    log.write("in", "hello", 7)
    log.close()
    with open(tmp_path / "messages.csv", "ab") as file:
        file.write(b"2026-01-01T00:00:00Z,out,he")
    log = AuditLog(tmp_path / "messages.csv")
    log.write("in", "hello", 8)
    log.close()
    lines = (tmp_path / "messages.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[-1].endswith("in,hello,,8,0,,allowed")


def test_lines_are_on_disk_at_once(tmp_path):
    at = synthetic(tmp_path / "s")
    at.ask(Call("hello"))
    assert len(at.log()) == 2
    assert (at.path / "messages.csv").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_full_is_kept_under_a_number_and_no_line_is_lost(tmp_path):
    path = tmp_path / "messages.csv"
    log = AuditLog(path, most=1000)
    for n in range(100):
        log.write("in", "hello", n)
    log.close()
    log = AuditLog(path, most=1000)  # another process goes on
    for n in range(100, 120):
        log.write("in", "hello", n)
    log.close()
    full = [tmp_path / f"messages-{k}.csv" for k in range(1, len(list(tmp_path.iterdir())))]
    assert len(full) > 2 and all(1000 <= p.stat().st_size < 1200 for p in full)
    seen = []
    for part in (*full, path):
        assert part.stat().st_mode & 0o077 == 0
        with part.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert tuple(rows[0]) == COLUMNS
        seen += [int(row["bytes"]) for row in rows]
    assert seen == list(range(120))
