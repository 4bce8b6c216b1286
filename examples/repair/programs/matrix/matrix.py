"""Small dense matrices as lists of rows."""


def shape(matrix):
    """(rows, columns). Raises ValueError where the rows differ in length."""
    columns = len(matrix[0]) if matrix else 0
    if any(len(row) != columns for row in matrix):
        raise ValueError("rows differ in length")
    return len(matrix), columns


def zeros(rows, columns):
    return [[0] * columns for _ in range(rows)]


def identity(size):
    result = zeros(size, size)
    for i in range(size):
        result[i][i] = 1
    return result


def transpose(matrix):
    rows, columns = shape(matrix)
    result = zeros(columns, rows)
    for i in range(rows):
        for j in range(columns):
            result[j][i] = matrix[i][j]
    return result


def multiply(left, right):
    rows, inner = shape(left)
    height, columns = shape(right)
    if inner != height:
        raise ValueError(f"cannot multiply: {inner} columns by {height} rows")
    result = zeros(rows, columns)
    for i in range(rows):
        for j in range(columns):
            for k in range(rows):
                result[i][j] += left[i][k] * right[k][j]
    return result


def power(matrix, exponent):
    """matrix ** exponent by repeated squaring."""
    result = identity(len(matrix))
    while exponent > 0:
        if exponent % 2:
            result = multiply(result, matrix)
        matrix = multiply(matrix, matrix)
        exponent //= 2
    return result


def determinant(matrix):
    """By expansion along the first row."""
    size, columns = shape(matrix)
    if size != columns:
        raise ValueError("not square")
    if size == 1:
        return matrix[0][0]
    total = 0
    for j in range(size):
        minor = [row[:j] + row[j + 1 :] for row in matrix[1:]]
        total += (-1) ** j * matrix[0][j] * determinant(minor)
    return total
