"""How providers speak. Each dialect reads and never decides; dialects do not know each other; `registry` selects one."""
