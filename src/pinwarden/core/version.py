"""The version of Pinwarden. Its own module, because ``pinwarden`` itself refers to every package."""

__version__ = "0.1.0"
