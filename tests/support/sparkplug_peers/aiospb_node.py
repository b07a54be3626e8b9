"""An edge node of aiospb: ``HOST PORT GROUP NODE``. It is born when a host says that it is online. A number on a line of
standard input is published.
"""

import asyncio
import sys

from aiospb.bootstrap import new_edge_of_node
from aiospb.infra.inmem import InMemReadingStore
from aiospb.infra.paho import MQTTConfig
from aiospb.nodes import MetricInfo, MetricsNetwork, NodeDevice
from aiospb.shared import DataType, DeviceKey, NodeOptions

host, port, group, name = sys.argv[1:]
KEY, DEVICE = DeviceKey(f"{group}/{name}"), DeviceKey(f"{group}/{name}/D")
METRICS = {
    KEY: [
        ("temp", DataType.Double, 1),
        ("on", DataType.Boolean, 2),
        ("note", DataType.String, 3),
        ("setpoint", DataType.Int32, 4),
    ],
    DEVICE: [("speed", DataType.Int16, 5)],
}
# It rounds floating-point numbers.
VALUES = {1: 3.0, 2: True, 3: "Grüße", 4: -3, 5: -300}


class Values(MetricsNetwork):
    def get_device_keys(self):
        return [KEY]

    async def get_info(self, key):
        return [MetricInfo(one, kind, alias=alias) for one, kind, alias in METRICS[key]]

    async def read(self, key, alias=0, name=""):
        return VALUES[alias]

    async def write(self, key, value, alias=0, name=""):
        print("command", name or None, alias or None, value, flush=True)
        return alias

    async def connect_device(self, key):
        pass

    async def disconnect_device(self, key):
        pass


async def main():
    values = Values()
    node = new_edge_of_node(KEY.path, MQTTConfig(host, int(port)), NodeOptions(scan_rate=200), values)
    node.add_device(NodeDevice(DEVICE, values, InMemReadingStore()))
    await node.establish_session()
    print("connected", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        VALUES[1] = float(line)
        print("published", flush=True)


asyncio.run(main())
