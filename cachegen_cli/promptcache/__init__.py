"""The layouts of mlx-lm's prompt-cache files, and what a header says, without MLX."""
