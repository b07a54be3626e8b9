"""An edge node of aiospb: ``HOST PORT GROUP NODE HOST_ID``. It waits for its primary host. A number on a line of standard
input is its next value, which it publishes by alias.
"""

import asyncio
import sys

from aiospb.bootstrap import new_edge_of_node
from aiospb.infra.paho import MQTTConfig
from aiospb.nodes import MetricInfo, MetricsNetwork
from aiospb.shared import DataType, DeviceKey, NodeOptions


class Network(MetricsNetwork):
    def __init__(self, node, device):
        self.keys = [node, device]
        self.values = {1: 1.5, 2: -3, 11: -300}

    def get_device_keys(self):
        return self.keys

    async def get_info(self, key):
        if key.device_name:
            return [MetricInfo("speed", DataType.Int16, alias=11)]
        return [MetricInfo("temp", DataType.Double, alias=1), MetricInfo("setpoint", DataType.Int32, alias=2)]

    async def read(self, key, alias=0, name=""):
        return self.values[alias]

    async def write(self, key, value, alias=0, name=""):
        print("command", name or None, alias, value, flush=True)
        self.values[alias] = value
        return alias

    async def connect_device(self, key):
        print("connected", key.path, flush=True)

    async def disconnect_device(self, key):
        pass


async def main(host, port, group, name, host_id):
    node = DeviceKey(f"{group}/{name}")
    network = Network(node, DeviceKey(f"{group}/{name}/D"))
    options = NodeOptions(primary=host_id, scan_rate=200)
    edge = new_edge_of_node(node.path, MQTTConfig(host, int(port)), options, network)
    await edge.establish_session()
    print("waiting", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        network.values[1] = float(line)
        network.values[11] = -int(float(line))
        print("published", flush=True)


asyncio.run(main(*sys.argv[1:]))
