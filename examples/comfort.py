"""A suite made with Great Expectations itself, on a table of one's own: row conditions, severities, an own expectation.

Make it: python examples/comfort.py FOLDER, a Great Expectations project from then on. Run it:
pulsebridge stream --set streaming.suites=FOLDER --set 'streaming.modules=["examples/comfort.py"]'
"""

import sys

import great_expectations as gx
from great_expectations import expectations as gxe
from great_expectations.execution_engine import SparkDFExecutionEngine

from streaming import pipelines as dp


class Whole(gxe.metrics.ColumnMapMetricProvider):
    condition_metric_name = "column_values.whole"

    @gxe.metrics.column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column, **kwargs):
        return column % 1 == 0


class ExpectColumnValuesToBeWhole(gxe.expectation.ColumnMapExpectation):
    map_metric = "column_values.whole"


if __name__ == "__main__":
    used = {"row_condition": "occupied", "condition_parser": "spark", "severity": "warning"}
    rules = [
        gxe.ExpectColumnValuesToBeBetween(column="temperature", min_value=-40, max_value=85),
        ExpectColumnValuesToBeWhole(column="humidity"),
        gxe.ExpectColumnValuesToBeBetween(column="temperature", min_value=17, **used),
        gxe.ExpectColumnMeanToBeBetween(column="humidity", max_value=60, severity="info"),
    ]
    context = gx.get_context(mode="file", project_root_dir=sys.argv[1])
    context.suites.add(gx.ExpectationSuite("comfort", expectations=rules))
else:
    fields = "temperature double, humidity double, occupied boolean"
    dp.table(lambda: dp.messages("zigbee2mqtt/+device", fields=fields), name="comfort", suite="comfort")
