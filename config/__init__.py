"""Data only: `upstreams.toml` ships in the wheel; the examples are for people."""
