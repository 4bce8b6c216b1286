"""Arithmetic expressions: tokens, reverse Polish notation, value."""

import re

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
RIGHT = {"^"}


def tokenize(text):
    """Split an expression into numbers, operators and parentheses."""
    tokens = re.findall(r"\d+\.?\d*|[-+*/^()]", text)
    if "".join(tokens) != text.replace(" ", ""):
        raise ValueError(f"cannot read {text!r}")
    return tokens


def to_rpn(tokens):
    """Dijkstra's shunting yard."""
    output = []
    operators = []
    for token in tokens:
        if token in PRECEDENCE:
            while operators and operators[-1] != "(":
                top = operators[-1]
                stronger = PRECEDENCE[top] > PRECEDENCE[token]
                equal = PRECEDENCE[top] == PRECEDENCE[token] and token not in RIGHT
                if not (stronger or equal):
                    break
                output.append(operators.pop())
            operators.append(token)
        elif token == "(":
            operators.append(token)
        elif token == ")":
            while operators and operators[-1] != "(":
                output.append(operators.pop())
            if not operators:
                raise ValueError("a closing parenthesis too many")
            operators.pop()
        else:
            output.append(token)
    while operators:
        if operators[-1] == "(":
            raise ValueError("a parenthesis is not closed")
        output.append(operators.pop())
    return output


def apply(operator, left, right):
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    return left**right


def evaluate(text):
    """The value of an expression."""
    stack = []
    for token in to_rpn(tokenize(text)):
        if token in PRECEDENCE:
            second = stack.pop()
            first = stack.pop()
            stack.append(apply(token, second, first))
        else:
            stack.append(float(token))
    return stack.pop()
