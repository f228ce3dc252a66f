"""The metrics in the text format of Prometheus, version 0.0.4.

# HELP name text          in help: \\ and line feed are escaped
# TYPE name counter
name{label="value"} 1     in values of labels: \\, line feed and " are
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import METRICS

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(status: Mapping[str, Any]) -> str:
    """All metrics of a status."""
    lines = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for values, number in metric.samples(status):
            pairs = zip(metric.labels, values, strict=True)
            labels = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs)
            lines.append(f"{metric.name}{'{' + labels + '}' if labels else ''} {_number(number)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    text = text.encode(errors="replace").decode()  # half a character would break the whole answer
    return text.replace('"', '\\"') if quoted else text
