"""Join links: a device joins a cloud without Ray, by one TCP connection with TLS, dialled by the device.

The cloud has a key that never leaves it; a join link names its fingerprint and carries the token of one device.
"""
