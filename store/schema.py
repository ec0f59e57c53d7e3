"""What the ledger's file holds: four tables (made by migrations) and the triggers, indexes and views around them.

Triggers, indexes and views carry no data, so that they are dropped before and made again after every migration:
sqlite-utils' `transform()` silently loses triggers, and refuses tables with expression indexes. Whatever is changed
here needs a new SCHEMA_VERSION and a migration, if an empty one: an opened ledger must have exactly these.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import chain, combinations

APPLICATION_ID = int.from_bytes(b"bitg", "big")
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SchemaObject:
    type: str
    name: str
    sql: str


def _trigger(name: str, when: str, then: str) -> SchemaObject:
    return SchemaObject("trigger", name, f"CREATE TRIGGER {name} {when} BEGIN {then}; END")


def _refuse(name: str, when: str, message: str) -> SchemaObject:
    return _trigger(name, when, f"SELECT RAISE(ABORT, '{message}')")


def _index(name: str, table: str, columns: str, where: str = "") -> SchemaObject:
    condition = f" WHERE {where}" if where else ""
    return SchemaObject("index", name, f"CREATE INDEX {name} ON {table} ({columns}){condition}")


def _view(name: str, select: str) -> SchemaObject:
    return SchemaObject("view", name, f"CREATE VIEW {name} AS {' '.join(select.split())}")


def field(name: str, table: str = "") -> str:
    """A field of the stored body, spelled as the indexes spell it: SQLite matches expression indexes by text."""
    return f"{table}{'.' if table else ''}body ->> '$.{name}'"


_STARTED = "EXISTS (SELECT 1 FROM entries WHERE subject = {run} AND kind = 'run_started')"
_FINISHED = "EXISTS (SELECT 1 FROM entries WHERE subject = {run} AND kind = 'run_finished')"


def _running(run: str) -> str:
    return f"{_STARTED.format(run=run)} AND NOT {_FINISHED.format(run=run)}"


GATE_SIDES = ("rollout", "trainer", "baseline")
"""The sides that gates C0-C10 are about, by the name under which evidence holds them."""

# The columns of evidence_keys: where each lies in the body of a piece of evidence.
KEYS = {
    "tool": "tool",
    '"check"': "check",
    "verdict": "verdict",
    **{side: f"sides.{side}.digest" for side in GATE_SIDES},
}


TRIGGERS = (
    _refuse("entries_no_update", "BEFORE UPDATE ON entries", "entries is append-only"),
    _refuse("entries_no_delete", "BEFORE DELETE ON entries", "entries is append-only"),
    # Also stops REPLACE on a connection without recursive_triggers, where the delete trigger stays silent.
    _refuse(
        "entries_chain",
        "BEFORE INSERT ON entries WHEN NEW.seq IS NOT (SELECT COALESCE(MAX(seq), 0) + 1 FROM entries) "
        "OR NEW.prev_hash IS NOT COALESCE((SELECT hash FROM entries ORDER BY seq DESC LIMIT 1), "
        f"'{'0' * 64}')",
        "the row does not follow the last one: hash chain broken",
    ),
    _refuse(
        "entries_json",
        "BEFORE INSERT ON entries WHEN json_valid(NEW.body) IS NOT 1 OR json_type(NEW.body) IS NOT 'object'",
        "body is not a JSON object",
    ),
    _refuse(
        "runs_start_once",
        f"BEFORE INSERT ON entries WHEN NEW.kind = 'run_started' AND {_STARTED.format(run='NEW.subject')}",
        "this run was started before",
    ),
    _refuse(
        "runs_finish_once",
        f"BEFORE INSERT ON entries WHEN NEW.kind = 'run_finished' AND NOT ({_running('NEW.subject')})",
        "this run is not running",
    ),
    _refuse(
        "evidence_of_running_run",
        f"BEFORE INSERT ON entries WHEN NEW.kind = 'evidence' AND NOT ({_running(field('run_id', 'NEW'))})",
        "evidence needs a run that is running",
    ),
    _trigger(
        "evidence_keys_add",
        "AFTER INSERT ON entries WHEN NEW.kind = 'evidence'",
        f"INSERT INTO evidence_keys (seq, {', '.join(KEYS)}) "
        f"VALUES (NEW.seq, {', '.join(field(place, 'NEW') for place in KEYS.values())})",
    ),
    _refuse("evidence_keys_no_update", "BEFORE UPDATE ON evidence_keys", "evidence_keys is append-only"),
    _refuse("evidence_keys_no_delete", "BEFORE DELETE ON evidence_keys", "evidence_keys is append-only"),
    _trigger(
        "running_add",
        "AFTER INSERT ON entries WHEN NEW.kind = 'run_started'",
        "INSERT INTO running (run_id, seq) VALUES (NEW.subject, NEW.seq)",
    ),
    _trigger(
        "running_remove",
        "AFTER INSERT ON entries WHEN NEW.kind = 'run_finished'",
        "DELETE FROM running WHERE run_id = NEW.subject",
    ),
)

# One index for each set of filters: SQLite appends seq, so that the newest rows of any filter are read without a sort.
_FILTERS = ("tool", '"check"', "verdict")
_FILTER_SETS = tuple(chain.from_iterable(combinations(_FILTERS, size) for size in (1, 2, 3)))

INDEXES = (
    _index("entries_by_kind", "entries", "kind"),
    _index("entries_by_subject", "entries", "subject, kind"),
    _index("runs_by_state", "entries", field("state"), "kind = 'run_finished'"),
    *(
        _index("evidence_by_" + "_".join(names).replace('"', ""), "evidence_keys", ", ".join(names))
        for names in _FILTER_SETS
    ),
    # What gates ask at every look: the results of a tool about exactly this side as it is today.
    *(
        _index(
            f"evidence_of_{side}",
            "evidence_keys",
            ", ".join((side, *_FILTERS)),
            f"{side} IS NOT NULL",
        )
        for side in GATE_SIDES
    ),
)

VIEWS = (
    _view(
        "runs",
        f"""SELECT s.subject AS id, {field("tool", "s")} AS tool, COALESCE({field("state", "f")}, 'running') AS state,
        s.actor AS actor, s.at AS started_at, f.at AS finished_at, {field("error_code", "f")} AS error_code,
        {field("error", "f")} AS error, {field("evidence_id", "f")} AS evidence_id,
        s.body -> '$.request' AS request, s.seq AS seq
        FROM entries AS s LEFT JOIN entries AS f ON f.subject = s.subject AND f.kind = 'run_finished'
        WHERE s.kind = 'run_started'""",
    ),
    _view(
        "evidence",
        f"""SELECT e.subject AS id, k.tool AS tool, k."check" AS "check", k.verdict AS verdict,
        {field("grade", "e")} AS grade, {field("summary", "e")} AS summary, {field("next", "e")} AS "next",
        {field("started_at", "e")} AS started_at, {field("finished_at", "e")} AS finished_at,
        {field("run_id", "e")} AS run_id, e.actor AS actor, e.body -> '$.reasons' AS reasons,
        e.body -> '$.figures' AS figures, e.body -> '$.request' AS request, k.seq AS seq
        FROM evidence_keys AS k JOIN entries AS e ON e.seq = k.seq""",
    ),
    _view(
        "evidence_sides",
        """SELECT e.subject AS evidence_id, side.key AS side, side.value ->> '$.engine' AS engine,
        side.value ->> '$.digest' AS digest, side.value ->> '$.configured' AS configured,
        side.value -> '$.options' AS options, e.seq AS seq
        FROM entries AS e, json_each(e.body, '$.sides') AS side WHERE e.kind = 'evidence'""",
    ),
    _view(
        "evidence_models",
        """SELECT e.subject AS evidence_id, model.key AS role, model.value ->> '$.name' AS model,
        model.value ->> '$.weights_digest' AS weights_digest, model.value ->> '$.weight_version' AS weight_version,
        model.value ->> '$.slice_of' AS slice_of, e.seq AS seq
        FROM entries AS e, json_each(e.body, '$.models') AS model WHERE e.kind = 'evidence'""",
    ),
    _view(
        "evidence_reasons",
        """SELECT e.subject AS evidence_id, reason.value ->> '$.code' AS code, reason.value ->> '$.detail' AS detail,
        e.seq AS seq FROM entries AS e, json_each(e.body, '$.reasons') AS reason WHERE e.kind = 'evidence'""",
    ),
    _view(
        "artifacts",
        """SELECT e.subject AS subject, e.kind AS kind, a.value ->> '$.name' AS name, a.value ->> '$.digest' AS digest,
        a.value ->> '$.size' AS size, a.value ->> '$.media_type' AS media_type, e.seq AS seq
        FROM entries AS e, json_each(e.body, '$.artifacts') AS a""",
    ),
    _view(
        "models",
        f"""SELECT subject AS name, {field("weights_digest")} AS weights_digest,
        {field("weight_version")} AS weight_version, {field("slice_of")} AS slice_of, {field("path")} AS path,
        {field("evidence_id")} AS evidence_id, at AS registered_at, actor, MAX(seq) AS seq
        FROM entries WHERE kind = 'model' GROUP BY subject""",
    ),
)

OBJECTS = (*INDEXES, *VIEWS, *TRIGGERS)


def drop_objects(connection: sqlite3.Connection) -> None:
    for item in reversed(OBJECTS):
        connection.execute(f"DROP {item.type} IF EXISTS {item.name}")


def create_objects(connection: sqlite3.Connection) -> None:
    for item in OBJECTS:
        connection.execute(item.sql)


def object_problems(connection: sqlite3.Connection) -> list[str]:
    """What is missing, altered or added among the objects that guard and read the ledger."""
    rows = connection.execute("SELECT type, name, sql, tbl_name FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    found = {(kind, name): sql for kind, name, sql, _ in rows}
    known = {item.name for item in OBJECTS}
    problems = []
    for item in OBJECTS:
        sql = found.get((item.type, item.name))
        if sql != item.sql:
            problems.append(f"{item.type} {item.name} is {'missing' if sql is None else 'not the one bitgate made'}")
    problems += [
        f"trigger {name} is not bitgate's" for kind, name, *_ in rows if kind == "trigger" and name not in known
    ]
    return problems
