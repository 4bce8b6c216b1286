from flatten_config import flatten, lookup, merge, unflatten

CONFIG = {"server": {"host": "localhost", "ports": [80, 443]}, "debug": False}


def test_flatten_one():
    assert flatten({"a": {"b": {"c": 1}}}) == {"a.b.c": 1}


def test_flatten_many():
    assert flatten(CONFIG) == {"server.host": "localhost", "server.ports.0": 80, "server.ports.1": 443, "debug": False}


def test_flatten_empty_value():
    assert flatten({"a": {}, "b": 1}) == {"a": {}, "b": 1}


def test_unflatten():
    assert unflatten({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


def test_merge():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": 4}) == {"a": {"x": 1, "y": 3}, "b": 1, "c": 4}


def test_lookup():
    assert lookup(CONFIG, "server.host") == "localhost"
    assert lookup(CONFIG, "server.name", "?") == "?"
