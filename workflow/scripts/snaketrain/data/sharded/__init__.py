"""Much text, prepared by several jobs: each file on its own, so that another file prepares no other one again."""
