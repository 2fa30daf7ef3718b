"""The data plane: frames between actors, over sockets that the actors open to each other, or over Ray calls.

Both implementations fulfil the port in `tandem.transport.port`; nothing here knows what a frame says.
"""
