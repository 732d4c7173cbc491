"""Driver of the Spark application: runs the step bootstrap of one run, under the same key as the pipeline's step.

So the pipeline finds its result when it comes to that step. Arguments: URI of the run, URI of the result of validate_data.
"""

from __future__ import annotations

import sys

from clrflow.steps import execute

if __name__ == "__main__":
    run, validate_data = sys.argv[1:]
    print(execute("bootstrap", run, {"validate_data": validate_data}).uri)
