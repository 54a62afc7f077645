"""Creating models, finding the parts of them that tasks and strategies need, and types at the border to modules and optimizers of
other libraries, whose arguments and results may be anything."""

from typing import Any, TypeAlias

Value: TypeAlias = Any
Args: TypeAlias = tuple[Value, ...]
Kwargs: TypeAlias = dict[str, Value]
ParameterGroups: TypeAlias = list[dict[str, Value]]  # of an optimizer, as torch types them
