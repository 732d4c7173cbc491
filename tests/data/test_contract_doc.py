"""The example of docs/data-contract.md is run as it stands there: a shop's log becomes tables that pass the checks."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import duckdb
import yaml

from clrflow.data.rules import rules_of
from clrflow.data.settings import DataSettings, DriftSettings
from tests.data.helpers import clean

DOC = Path(__file__).parents[2] / "docs" / "data-contract.md"

SHOP = """
CREATE TABLE weblog (visitor TEXT, sku TEXT, ts_ms BIGINT, seq BIGINT, kind TEXT, module TEXT, module_key TEXT, slot BIGINT);
INSERT INTO weblog VALUES
  ('ann', 'boot', 1735689600000, 7, 'view', 'category', 'shoes', 1), ('ann', 'boot', 1735689600000, 9, 'open', 'category', 'shoes', 1),
  ('ann', 'lace', 1735689600000, 8, 'order', 'similar', 'boot', 2), ('bob', 'boot', 1735689660000, 1, 'basket', NULL, NULL, NULL),
  ('bob', NULL, 1735689660000, 2, 'login', NULL, NULL, NULL), ('bob', 'gone', 1735689670000, 3, 'open', NULL, NULL, NULL);
CREATE TABLE products (sku TEXT, listed_on DATE, categories TEXT[], vector FLOAT[2], name TEXT);
INSERT INTO products VALUES ('boot', '2024-05-01', ['shoes', 'winter'], [1, 0], 'A boot'), ('lace', '2024-06-01', ['shoes'], [0, 1], 'A lace'),
  ('new', '2024-12-01', ['shoes'], NULL, 'No vector yet');
CREATE TABLE wishlist_entries (list_id BIGINT, owner TEXT, sku TEXT, put_at TIMESTAMP, title TEXT);
INSERT INTO wishlist_entries VALUES (5, 'ann', 'boot', '2024-12-24', 'For winter');
CREATE TABLE category_follows (visitor TEXT, category TEXT, since TIMESTAMP);
INSERT INTO category_follows VALUES ('bob', 'winter', '2024-11-01');
CREATE TABLE categories (category TEXT, label TEXT);
INSERT INTO categories VALUES ('shoes', 'Shoes'), ('winter', 'Winter');
"""


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOC.read_text(), re.DOTALL)
    return str(found)


def int64_id(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little") >> 1


def test_the_example_turns_a_shops_log_into_tables_that_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    with duckdb.connect() as con:
        con.execute(SHOP)
        con.execute(block("sql"))
    settings = yaml.safe_load(block("yaml"))["data"]
    outcome = clean(str(tmp_path / settings.pop("tables")), tmp_path, **DataSettings(**settings).model_dump(include=set(settings)))
    ann, bob, boot, lace, shoes, winter = (int64_id(text) for text in ("ann", "bob", "boot", "lace", "shoes", "winter"))
    events = outcome.rows("events", "user_id", "item_id", "action", "condition_type", "condition_id", "event_order")
    assert [row for row in events if row[0] == ann] == [
        (ann, boot, "impression", "interest", shoes, 0), (ann, lace, "order", "item", boot, 1), (ann, boot, "click", "interest", shoes, 2),
    ]  # fmt: skip
    assert [row for row in events if row[0] == bob] == [(bob, boot, "basket", None, None, 0)]
    assert outcome.facts["dropped"] == {"events.unknown_item": 1}
    assert outcome.facts["cleared"] == {}
    assert sorted(outcome.rows("items", "item_id", "interests", "title")) == sorted(
        [(boot, [shoes, winter], "A boot"), (lace, [shoes], "A lace")]
    )
    assert outcome.rows("boards", "board_id", "user_id", "item_id") == [(5, ann, boot)]
    assert outcome.rows("user_interests", "user_id", "interest_id") == [(bob, winter)]
    assert sorted(outcome.rows("interests", "interest_id", "name")) == sorted([(shoes, "Shoes"), (winter, "Winter")])


def test_every_rule_and_every_threshold_stands_in_the_page_with_its_default():
    page = DOC.read_text()
    for rule in rules_of(DataSettings(), now_us=0, embedding_width=2):
        assert re.search(rf"^\| `{rule.name}` \|.*`data\.{rule.setting}` {getattr(DataSettings(), rule.setting)}", page, re.MULTILINE), (
            rule.setting
        )
    for name in DriftSettings.model_fields:
        assert f"`data.drift.{name}`" in page or f"data.drift.{name}=" in page, name
