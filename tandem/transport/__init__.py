"""The data plane: frames between actors, over sockets that they open to each other, or over Ray calls.

Both implementations fulfil the port in `tandem.transport.port`.
"""
