"""Values to JSON and back: everything that crosses a step's boundary and everything that the journal stores.

Start at `codec.py` (`encode`, `decode`, `digest`). `encoder.py` and `decoder.py` handle JSON's own types and
containers, and find what handles each other kind. A module for each group of kinds does so both ways:
`simple_values.py`, `times.py`, `enums.py`, `subclasses.py`, `dataclass_objects.py`, `pydantic_objects.py` and
`exceptions.py`. `coders.py` says what they need of the two. `attributes.py` handles the state of objects besides
their fields, `object_parts.py` looks at the parts of objects. `type_names.py` names types, `persisted_names.py` keeps
the stored names of Ramify's own types when classes move.

`encoded_value.py` makes the text, the digest and the copies of a value of one encoding. `json_parts.py` writes it,
`canonical.py` orders it, `collector_pause.py` saves time meanwhile. `digests.py` finds the digests by which a journal
knows values, those of earlier versions included; `recorded_layouts.py` finds those of earlier classes.
`long_texts.py` works on long texts in pieces. `return_types.py` checks a step's declared return type.
"""
