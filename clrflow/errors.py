"""The two ways a command ends badly, as exit codes: 1 the work failed, 2 the input was wrong.

A message has three parts: what and which value, why, what to do instead.
"""


class ClrflowError(Exception):
    """The work failed although the input was acceptable."""

    exit_code = 1


class BadInput(ClrflowError):
    """Settings, tables or arguments that must be changed before it is worth trying again."""

    exit_code = 2


class ConfigError(BadInput):
    """A setting is unknown, has the wrong type or contradicts another one."""


class DataError(BadInput):
    """An input table breaks the data contract; names table, column, value and count."""


class GateError(ClrflowError):
    """A quality threshold was missed; names the figure, the threshold and the setting that holds it."""
