"""An edge node of mqtt-spb-wrapper: ``HOST PORT GROUP NODE``. A number on a line of standard input is published."""

import sys

from mqtt_spb_wrapper import MqttSpbEntityDevice, MqttSpbEntityEdgeNode


def took(payload):
    for one in payload["metrics"]:
        print("command", one.get("name"), one.get("alias"), one.get("value"), flush=True)


host, port, group, name = sys.argv[1:]
node = MqttSpbEntityEdgeNode(group, name)
node.data.set_value("temp", 1.5)
node.data.set_value("on", True)
node.data.set_value("note", "Grüße")
node.data.set_value("table", {"a": [1, 2], "b": ["x", "y"]})
node.commands.set_value("setpoint", -3)
node.on_command = took
device = MqttSpbEntityDevice(group, name, "D")
device.data.set_value("speed", -300)
device.commands.set_value("stop", False)
device.on_command = took
for one in (node, device):
    assert one.connect(host, int(port))
    one.publish_birth()
print("born", flush=True)
for line in sys.stdin:
    node.data.set_value("temp", float(line))
    node.publish_data()
    device.data.set_value("speed", -int(float(line)))
    device.publish_data()
    print("published", flush=True)
