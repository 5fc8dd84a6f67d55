"""Clients of object stores, with limits on what a store can make them read and retain."""
