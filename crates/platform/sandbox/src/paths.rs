//! Files of the system that every program and library may need.

/// Programs and libraries to read and execute.
pub(crate) const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/opt/nvidia",
    "/opt/intel",
];

/// Settings of the C library, of libraries' search, and of common libraries. Nothing else of /etc, which may hold keys.
pub(crate) const SETTINGS: &[&str] = &[
    "/etc/alpine-release",
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/ca-certificates",
    "/etc/centos-release",
    "/etc/debian_version",
    "/etc/default/locale",
    "/etc/fedora-release",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/OpenCL",
    "/etc/openvino",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/profile",
    "/etc/protocols",
    "/etc/python3",
    "/etc/redhat-release",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/system-release",
    "/etc/timezone",
    "/etc/vulkan",
];

/// Descriptions of the machine. Folders of other processes in /proc are left out: command lines may hold secrets.
pub(crate) const MACHINE: &[&str] = &[
    "/sys",
    "/proc/cgroups",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver/nvidia",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys",
    "/proc/uptime",
    "/proc/version",
    "/proc/vmstat",
];

/// Devices without contents.
pub(crate) const DEVICES: &[&str] =
    &["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];

/// Where devices of GPUs are, and how their names begin.
pub(crate) const GPUS: &[(&str, &str)] =
    &[("/dev", "nvidia"), ("/dev/nvidia-caps", "nvidia"), ("/dev/dri", ""), ("/dev", "kfd"), ("/dev", "dxg")];
