"""Nested settings as flat dotted keys, and back."""


def flatten(config, prefix=""):
    """{"a": {"b": 1}} as {"a.b": 1}; lists by position."""
    flat = {}
    items = enumerate(config) if isinstance(config, list) else config.items()
    for key, value in items:
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, (dict, list)) and value:
            flat.update(flatten(value, name))
        else:
            flat[name] = value
        return flat


def unflatten(flat):
    """The nested dictionaries again."""
    nested = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def merge(base, extra):
    """base with extra on top, nested dictionaries joined; neither is changed."""
    result = dict(base)
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def lookup(config, name, default=None):
    """The value at a dotted name."""
    place = config
    for key in name.split("."):
        if not isinstance(place, dict) or key not in place:
            return default
        place = place[key]
    return place
