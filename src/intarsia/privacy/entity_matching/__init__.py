"""Match sample ids without showing them: normalisation, pseudonyms, private set intersection.

Each module is one step. `psi` is for two clients; its functions are the messages of the protocol,
in their order.
"""
