"""Injects faults and checks their effect on slices, without any code of the hub.

``proxy`` breaks connections, ``recorder`` records all slices, ``judge`` checks the recording.
"""
