"""What plain PyTorch, its tools and this plugin make of each way to corrupt a gradient."""
