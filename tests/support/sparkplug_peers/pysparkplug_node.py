"""An edge node of pysparkplug: ``HOST PORT GROUP NODE``. A number on a line of standard input is published."""

import sys
import time

from pysparkplug import Client, DataType, Device, EdgeNode, Metric, get_current_timestamp


def metric(name, datatype, value, alias=None):
    return Metric(timestamp=get_current_timestamp(), name=name, datatype=datatype, value=value, alias=alias)


def took(_node, message):
    for one in message.payload.metrics:
        print("command", one.name, one.alias, one.value, flush=True)


host, port, group, name = sys.argv[1:]
metrics = [
    metric("small", DataType.INT8, -7),
    metric("large", DataType.UINT64, 2**63 + 5),
    metric("temp", DataType.DOUBLE, 1.5),
    metric("ratio", DataType.FLOAT, 0.25),
    metric("on", DataType.BOOLEAN, True),
    metric("note", DataType.STRING, "Grüße"),
    metric("none", DataType.INT32, None),
    metric("setpoint", DataType.INT32, -3, alias=12),
    metric("Node Control/Rebirth", DataType.BOOLEAN, False),
]
node = EdgeNode(group, name, metrics, client=Client(client_id=f"{group}-{name}"), cmd_callback=took)
node.register(Device("D", [metric("speed", DataType.INT16, -300)], cmd_callback=took))
node.connect(host, port=int(port))
while not node._connected:
    time.sleep(0.05)
print("born", flush=True)
for line in sys.stdin:
    node.update([metric("temp", DataType.DOUBLE, float(line))])
    node.update_device("D", [metric("speed", DataType.INT16, -int(float(line)))])
    print("published", flush=True)
