# Three servers under Nomad, with an address for each in Nomad's own registry: see docs/scaling-out.md.
variable "image" {
  type    = string
  default = "registry.example/nereid:0.1.0"
}

job "nereid" {
  type = "service"

  # A new server is ready before an old one goes.
  update {
    max_parallel      = 1
    canary            = 1
    auto_promote      = true
    auto_revert       = true
    health_check      = "checks"
    min_healthy_time  = "5s"
    healthy_deadline  = "10m"
    progress_deadline = "15m"
  }

  group "nereid" {
    count = 3

    # On different nodes, if there are enough.
    spread {
      attribute = "${node.unique.id}"
    }

    # A volume of the clients: host_volume "models" in their configuration.
    volume "models" {
      type      = "host"
      source    = "models"
      read_only = true
    }

    network {
      port "http" {
        to = 8000
      }
      port "grpc" {
        to = 8001
      }
      port "metrics" {
        to = 8002
      }
    }

    # Balancers stop sending when the address is gone, which takes a moment.
    shutdown_delay = "5s"

    service {
      name     = "nereid-http"
      provider = "nomad"
      port     = "http"

      check {
        type     = "http"
        path     = "/v2/health/ready"
        interval = "2s"
        timeout  = "1s"
      }
    }

    service {
      name     = "nereid-grpc"
      provider = "nomad"
      port     = "grpc"
    }

    service {
      name     = "nereid-metrics"
      provider = "nomad"
      port     = "metrics"
    }

    task "nereid" {
      driver = "docker"

      config {
        image           = var.image
        args            = ["nereid", "--model-repository=/models", "--load-reports=always", "--exit-timeout-secs=45"]
        ports           = ["http", "grpc", "metrics"]
        readonly_rootfs = true
        cap_drop        = ["all"]

        mount {
          type   = "tmpfs"
          target = "/tmp"
        }
      }

      volume_mount {
        volume      = "models"
        destination = "/models"
        read_only   = true
      }

      # Longer than --exit-timeout-secs.
      kill_timeout = "55s"

      resources {
        cpu    = 2000
        memory = 4096
      }
    }
  }
}
