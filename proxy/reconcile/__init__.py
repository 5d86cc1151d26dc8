"""Leaving `unknown`: by evidence or by a recorded decision, never by sending. Nothing here may import the forwarder."""
