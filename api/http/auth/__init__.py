"""Who may ask, and how much: API keys, their limits, and the layer that asks for them."""

from tripower.api.http.auth.keyring import Keyring
from tripower.api.http.auth.keys import ApiKey, keys_configured, load_keys

__all__ = ["ApiKey", "Keyring", "keys_configured", "load_keys"]
