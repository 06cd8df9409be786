"""Prices and volumes of many symbols: indicators on the device, features, windows with a class each."""
