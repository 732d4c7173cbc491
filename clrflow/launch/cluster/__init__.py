"""A job on a cluster: rendered, placed, followed and always ended. Start with launcher.py; what a backend renders is in plan.py."""
