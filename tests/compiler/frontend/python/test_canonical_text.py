"""The canonical text of syntax: what must not change it, and what must."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ramify.compiler.frontend.python import canonical_text
from ramify.compiler.frontend.python.canonical_text import ast_dump_for, pieces_of, text_of

SYNTAX = Path(canonical_text.__file__)
MINORS = (11, 12, 13, 14)


def text(source: str) -> str:
    return "\n".join(text_of(node) for node in ast.parse(textwrap.dedent(source)).body)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(): return 1", "def f():\n\n    # why\n    return (1)\n"),
        ("x = 'a'", 'x = u"a"'),
        ("x = [1, 2]", "x = [\n    1,\n    2,\n]"),
        ("x = 'a' 'b'", "x = 'ab'"),
        ("x = f'{a} b' ' c'", 'x = f"{a}" " b" " c"'),
        ("x = f'{a!r:>{w}} {{}}'", 'x = (f"{a!r:>{w}}" f" {{}}")'),
        ("x = 0xFF + 1_000", "x = 255 + 1000"),
        ("def f():\n    del (a, b)", "def f():\n    del a, b"),
        ("def f():\n    '''One.\n\n      Two.  \n    '''", 'def f():\n    """One.\n\n  Two.\n    """'),
        ("def f():\n    1\n    'no docstring'\n    return 2", "def f():\n    1\n    return 2"),
        ("for (x, y) in z: pass", "for x, y in z:\n    pass"),
        ("def f(a, *, b=1): return a", "def f(\n    a,\n    *,\n    b=1,\n):\n    return a"),
        # local names
        ("def f():\n    x = 1\n    return x", "def f():\n    y = 1\n    return y"),
        ("def f(a):\n    return [x for x in a if x]", "def f(a):\n    return [y for y in a if y]"),
        (
            "def f():\n    x = 1\n    def g():\n        nonlocal_ = x\n        return nonlocal_\n    return g",
            "def f():\n    y = 1\n    def g():\n        z = y\n        return z\n    return g",
        ),
        (
            "def f(a):\n    try:\n        a()\n    except E as error:\n        return error",
            "def f(a):\n    try:\n        a()\n    except E as e:\n        return e",
        ),
        (
            "def f(a):\n    match a:\n        case [x, *y]:\n            return x, y",
            "def f(a):\n    match a:\n        case [p, *q]:\n            return p, q",
        ),
        ("def f(a):\n    if (n := a):\n        return n", "def f(a):\n    if (m := a):\n        return m"),
        (
            "def f(a):\n    return [n for x in a if (n := x)]",
            "def f(a):\n    return [m for y in a if (m := y)]",
        ),
    ],
)
def test_layout_and_local_names_do_not_change_the_text(one: str, other: str) -> None:
    assert text(one) == text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = True"),
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'a\\nb'", "x = 'a b'"),
        ("x = -1", "x = 1"),
        ("x = f'{a}'", "x = f'{a!r}'"),
        ("x = f'{a}b'", "x = f'{a}' 'c'"),
        ("def f(): return a.b", "def f(): return a.c"),
        ("def f(a): return a", "def f(b): return b"),  # it may be passed by keyword
        ("def f(): g(a=1)", "def f(): g(b=1)"),
        ("async def f(): pass", "def f(): pass"),
        ("def f():\n    'One.'\n    return 1", "def f():\n    'Two.'\n    return 1"),
        # targets in another order
        (
            "def f():\n    a = g()\n    b = g()\n    return a, b",
            "def f():\n    b = g()\n    a = g()\n    return a, b",
        ),
        ("def f():\n    a, b = g()\n    return a", "def f():\n    b, a = g()\n    return a"),
        ("def f(x):\n    for a, b in x:\n        g(a)", "def f(x):\n    for b, a in x:\n        g(a)"),
        # a name that belongs to the module elsewhere in the function
        ("def f(a):\n    g(x)\n    return [x for x in a]", "def f(a):\n    g(y)\n    return [y for y in a]"),
        ("def f(a):\n    return [x for x in x]", "def f(a):\n    return [y for y in y]"),
        ("def f():\n    global x\n    x = 1", "def f():\n    global y\n    y = 1"),
        ("def f():\n    x = 1\n    return locals()", "def f():\n    y = 1\n    return locals()"),
        ("def f():\n    x = 1\n    return eval('x')", "def f():\n    y = 1\n    return eval('x')"),
        ("def f():\n    x = 1\n    return f'{x=}'", "def f():\n    y = 1\n    return f'{y=}'"),
        (
            "def f():\n    class C:\n        x = 1\n    return C",
            "def f():\n    class C:\n        y = 1\n    return C",
        ),
        ("def f():\n    x = 1\n    return x", "def f():\n    x = 1\n    return y"),
        ("def f():\n    import a\n    return a", "def f():\n    import a as b\n    return b"),
        ("def f(a, /): return a", "def f(a): return a"),
        (
            "def f(a):\n    try:\n        a()\n    except E:\n        b()",
            "def f(a):\n    try:\n        a()\n    finally:\n        b()",
        ),
        (
            "def f(a):\n    while a:\n        b()\n    else:\n        c()",
            "def f(a):\n    while a:\n        b()\n    c()",
        ),
        ("x = {**a, 'b': 1}", "x = {'b': 1, **a}"),
        ("x = [*a]", "x = [a]"),
        ("def f(*, a, b=1): pass", "def f(*, a=1, b): pass"),
        ("x = a[1:]", "x = a[:1]"),
        ("x = a < b < c", "x = a < b <= c"),
    ],
)
def test_a_change_of_meaning_changes_the_text(one: str, other: str) -> None:
    assert text(one) != text(other)


def interpreters() -> dict[int, str]:
    found = {}
    for minor in MINORS:
        there = [shutil.which(f"python3.{minor}")]
        there += map(str, sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python")))
        for path in filter(None, there):
            ran = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True
            )
            if ran.stdout.strip() == str(minor):
                found[minor] = path
                break
    return found


_DIGESTS = """
import ast, hashlib, importlib, os, sys, types
name = ""
for part in "ramify.compiler.frontend.python".split("."):  # empty packages: the other Pythons have no Ramify
    name = f"{name}.{part}".lstrip(".")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.dirname(sys.argv[1])]
syntax = importlib.import_module(f"{name}.canonical_text")
stable, dumped = hashlib.sha256(), hashlib.sha256()
for path in sys.argv[2:]:
    for node in ast.parse(open(path, encoding="utf-8").read()).body:
        stable.update(syntax.text_of(node).encode())
        if path != sys.argv[2]:
            dumped.update(ast.dump(node).encode())
print(stable.hexdigest(), dumped.hexdigest())
"""


@pytest.mark.parametrize("minor", MINORS)
def test_every_python_gives_the_same_text(minor: int, tmp_path: Path) -> None:
    """Unusual syntax is covered as well; and digests of format 5 made under another Python can be computed here."""
    python = interpreters().get(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor} here")
    odd = tmp_path / "odd.py"
    odd.write_text(
        'def f(a, *b, c=1, **d):\n    """Doc\n      in it.\n    """\n'
        '    x = f"{a!r:>{c}} {a=} {{}}" f"{b}" "é\\u2028"\n'
        "    async def g(): return [i async for i in a if await i]\n    del (a, b)\n    return lambda: (yield x)\n"
        "class C(f, metaclass=f):\n    x: int = 1_0\n    def g(self): return 1e999, 1j, b'\\x00', ..., None, -0.0\n"
        "match f:\n    case {'a': 1, **rest}: pass\n    case C(x=1) | [_, *_]: pass\n"
        "try:\n    pass\nexcept* E:\n    pass\n",
        encoding="utf-8",
    )
    files = [odd, *sorted(SYNTAX.parent.glob("*.py"))]
    ran = subprocess.run(
        [python, "-c", _DIGESTS, str(SYNTAX), *map(str, files)], capture_output=True, text=True, check=True
    )
    stable, dumped = ran.stdout.split()
    here, then = hashlib.sha256(), hashlib.sha256()
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            here.update(text_of(node).encode())
            if path != odd:  # how texts with braces are cut was not the same
                then.update(ast_dump_for(node, minor).encode())
    assert stable == here.hexdigest()
    if minor < 14 and sys.version_info < (3, 14):
        assert dumped == then.hexdigest()


def test_free_names_are_left_open() -> None:
    (node,) = ast.parse("def f(a):\n    b = one(a)\n    return two.three(b, f)").body
    free = {str(piece) for piece in pieces_of(node) if isinstance(piece, canonical_text.FreeName)}
    assert free == {"one", "two.three", "f"}


def test_unparsed_code_has_the_same_text() -> None:
    """Every statement of the compiler, with other quotes, parentheses and line breaks, and without its comments."""
    checked = 0
    for path in sorted(SYNTAX.parents[2].rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            (anew,) = ast.parse(ast.unparse(node)).body
            assert text_of(node) == text_of(anew), f"{path.name}:{node.lineno}"
            checked += 1
    assert checked > 500
