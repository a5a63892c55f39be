/* base: what every module stands on. One include brings all of it. */
#ifndef AZ_BASE_H
#define AZ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bus.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/rng.h"
#include "base/state.h"
#include "base/stop.h"
#include "base/str.h"
#include "base/units.h"

#endif
