"""Values to JSON and back: everything that crosses a step's boundary and everything that the journal stores.

Start at `codec.py` (`encode`, `decode`, `digest`). `encoder.py` and `decoder.py` handle one kind of value each way,
`type_names.py` names types, `persisted_names.py` keeps the stored names of Ramify's own types when classes move, and
`encoded_value.py` makes the text, the digest and the copies of a value of one encoding: `json_parts.py` writes it,
`canonical.py` orders it. `digests.py` finds the digests by which a journal knows values, those of earlier versions
included. `long_texts.py` works on long texts in pieces. `return_types.py` checks a step's declared return type.
"""
