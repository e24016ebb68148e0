from tests.browser import chromium, served, visit

__all__ = ["chromium", "served", "visit"]
