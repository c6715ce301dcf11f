"""What the machine allows this process, and the defaults that follow from it."""

from tripower.runtime.host.defaults import Choice, Defaults, ModelNeeds, choose_defaults
from tripower.runtime.host.limits import HostLimits, read_host_limits

__all__ = ["Choice", "Defaults", "HostLimits", "ModelNeeds", "choose_defaults", "read_host_limits"]
