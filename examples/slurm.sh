#!/bin/bash
# Four nodes of four GPUs. `sbatch examples/slurm.sh`; submit it again, with any --nodes that divides the lanes, and it
# goes on where it stopped. The dataset is on a file system that all nodes see, or a URL of an object store.
#SBATCH --job-name=shardmill
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue

set -euo pipefail

# One torchrun a node; they find each other at the first node of the job.
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" \
    --nproc-per-node 4 \
    --rdzv-backend c10d \
    --rdzv-endpoint "$head_node:29500" \
    --rdzv-id "$SLURM_JOB_ID" \
    --max-restarts 3 \
    examples/distributed.py "${DATASET:?set DATASET to what shardmill pack made}" \
    --global-batch 2048 --image-size 224 --epochs 90 --checkpoint "${CHECKPOINT:-run.pt}"
