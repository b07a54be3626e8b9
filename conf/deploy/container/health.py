"""Health check of a container: exit code 0 if /healthz on the metrics port answers 200, else 1 with the answer."""

import os
import sys
from http.client import HTTPConnection, HTTPException

port = int(os.environ.get("PULSEBRIDGE_METRICS__PORT", "9464"))
connection = HTTPConnection("127.0.0.1", port, timeout=4)
try:
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace").strip()
except (OSError, HTTPException) as e:
    sys.exit(f"/healthz on port {port} does not answer: {e}")
if answer.status != 200:
    sys.exit(text)
