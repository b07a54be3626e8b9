"""Places: at which MQTT broker each device is, by its newest dated sign of life.

The memory of signs is bounded. The device's cursor keeps its broker as well, for the next owner, and for a device whose signs
were forgotten. With one broker there is nothing to know.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.contract.commands import Command
from bridge.push.device import Device, Devices
from bridge.push.links import Links
from bridge.push.probes import Presence
from bridge.push.states import Mode

__all__ = ["Places"]


@dataclass(eq=False)
class Places:
    """The places of a partition's devices."""

    _links: Links
    _devices: Devices
    presence: Presence
    _began_us: int  # when this owner began

    def known(self, link: str) -> str:
        """Return the broker that a sign names, "" if it is not one of several."""
        return link if self._links.several and link in self._links else ""

    def link_of(self, name: str) -> str:
        """Return the broker at which a device gets its commands."""
        device = self._devices.awake.get(name)
        return self.last_seen(name) if device is None else device.link

    def last_seen(self, name: str) -> str:
        """Return the broker at which a device was last seen, or got its last command; else the first one."""
        return self._known(name) or self._links.names[0]

    def _known(self, name: str) -> str:
        self.recall(name)
        cursor = self._devices.any_cursor(name)
        former = cursor.link if cursor is not None and cursor.link in self._links else ""
        return self.presence.place(name)[0] or former

    def recall(self, name: str) -> None:
        """Note where a former owner has seen the device, unless more is known."""
        if not self._links.several or self.presence.place(name)[0]:
            return
        cursor = self._devices.any_cursor(name)
        if cursor is not None and cursor.link in self._links and cursor.link_at_us:
            self.presence.put(name, cursor.link, cursor.link_at_us)

    def store(self, name: str) -> None:
        """Have the device's next cursor say where it is."""
        device = self._devices.awake.get(name) if self._links.several else None
        link, at_us = self.presence.place(name)
        if device is not None and link:  # else when it wakes
            device.cursor.link, device.cursor.link_at_us = link, at_us

    def locate(self, device: Device) -> None:
        """Have the device get its commands where it was last seen."""
        if self._links.several:
            known = self._known(device.name)
            self._devices.move(device, known or self._links.names[0], certain=bool(known))
            self.store(device.name)

    def choose(self, device: Device, command: Command) -> None:
        """Have a device that was never seen get its commands where the first of them says."""
        if not device.queue and command.link in self._links:
            self._devices.move(device, command.link, certain=False)

    def ends_absence(self, name: str, at_us: int) -> bool:
        """Return whether a sign of life from another broker counts although it may be older than the absence: its device was
        parked because of what the wrong broker reported. Of a device that a former owner parked, and that was never seen at a
        broker, that is not known.
        """
        parked = self._devices.mode_of(name) is Mode.PARKED
        return not parked or bool(self.presence.place(name)[0]) or at_us >= self._began_us

    def leaving(self, name: str) -> Device | None:
        """Return a device that has left its broker, if that matters to its commands or to the next owner, else None."""
        device, cursor = self._devices.awake.get(name), self._devices.any_cursor(name)
        if device is None and cursor is not None and (cursor.unproven or self.presence.place(name)[0]):
            return self._devices.get(name)
        return device
