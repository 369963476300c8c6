# docker buildx bake -f deploy/docker/docker-bake.hcl cpu|cuda|xpu|rocm|hpu
group "default" {
  targets = ["cpu"]
}

# The image with Intel's software for Gaudi, which has the torch that fits it; docs/platforms.md says which releases do.
variable "GAUDI" {
  default = ""
}

# What is installed beside lsv: EXTRAS=webui,ray docker buildx bake … for an engine on several machines.
variable "EXTRAS" {
  default = "webui"
}

target "lsv" {
  context    = "."
  dockerfile = "deploy/docker/Dockerfile"
  args       = { EXTRAS = EXTRAS }
}

target "cpu" {
  inherits = ["lsv"]
  tags     = ["lsv:cpu"]
}

# Wants the NVIDIA Container Toolkit: docker run --gpus all
target "cuda" {
  inherits = ["lsv"]
  tags     = ["lsv:cuda"]
  args     = { TORCH = "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" }
}

# docker run --device /dev/dri, and --group-add with the group that owns it
target "xpu" {
  inherits = ["lsv"]
  tags     = ["lsv:xpu"]
  args = {
    BASE     = "intel/deep-learning-essentials:2026.1.0-devel-ubuntu24.04"
    PACKAGES = "python3-venv python3-dev"
    TORCH    = "torch==2.13.0 --index-url https://download.pytorch.org/whl/xpu"
  }
}

# docker run --device /dev/kfd --device /dev/dri, and --group-add with the groups that own them
target "rocm" {
  inherits = ["lsv"]
  tags     = ["lsv:rocm"]
  args     = { TORCH = "torch==2.13.0 --index-url https://download.pytorch.org/whl/rocm7.1" }
}

# GAUDI=IMAGE docker buildx bake …, an image on Ubuntu or on RHEL; then docker run --runtime=habana
target "hpu" {
  inherits = ["lsv"]
  tags     = ["lsv:hpu"]
  args     = { BASE = GAUDI, TORCH = "" }
}
